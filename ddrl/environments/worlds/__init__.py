"""The simulators and games behind adapters that have none of their own."""
