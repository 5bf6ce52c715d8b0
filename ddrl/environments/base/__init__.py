"""What adapters are made with: the contract, replayed states, suites of tasks, and the registry that finds them."""
