"""Neural networks of the agents: torsos, the LSTM, the actor-critic network and the Q-network."""
