"""AWS in this process, below boto3's clients: what the simulator runs the real functions on.

`account.Account` is all that the template declares; `hook.Hook` puts it behind clients.
"""
