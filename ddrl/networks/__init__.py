"""Networks: torsos (observation -> features), the recurrent core, and the actor-critic that joins them."""
