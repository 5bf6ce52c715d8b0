"""What an actor is made of: a policy, the collecting of unrolls, and the evaluator."""
