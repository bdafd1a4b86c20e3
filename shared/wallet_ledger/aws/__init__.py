"""Adapters: the ports of `wallet_ledger.ports` on DynamoDB, SQS and EventBridge."""
