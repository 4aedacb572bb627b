"""Learners: make batches of full slots, train the policy, publish and save it."""
