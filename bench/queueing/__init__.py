"""How much Wakala carries on AWS: published limits, what a transaction takes, and a simulation."""
