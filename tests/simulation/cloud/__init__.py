"""AWS in this process, below boto3's clients: what the simulator runs the real functions on.

- `account.Account`: all that the template declares, empty; nothing in it happens by itself.
- `stack.Stack`: which source calls which function, and how, as data from the template.
- `hook.Hook`: stands behind clients; its `answer` is where an account, or faults before it, go.
- `functions.import_handlers`: the real handlers, with the template's environment.
- `machine.running_on`: their clock and their threads, for a simulation to drive.
- `delivery`: what Lambda makes of a queue, a stream and an answer, for whoever lets it run.
- `dynamodb`, `sqs`, `bus`: the services. Each call is one step; whoever is told of a write or of a
  delivery within it must not let another call in.
- `clients`: where clients are made; and an `Aws` for suites that want one, with or without
  botocore's own retries.

The contract suites run on it beside real engines; that is what makes it believable.
"""
