"""What reads the files of runs or drives `sf` from outside: it knows the public interface, and nothing of the roles."""
