"""What `sf doctor` looks at: the machine, the software, words in shared memory, and a short training."""
