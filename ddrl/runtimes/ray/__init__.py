"""Runtime `ray`: learners, actors, replay and parameter shards in processes of their own."""
