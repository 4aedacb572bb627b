/* See order.py. */
void fence(void) { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
