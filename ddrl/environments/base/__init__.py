"""The parts of adapters: the contract, replayed states, suites of tasks, and the registry that finds them."""
