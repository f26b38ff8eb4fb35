/* Every backend, the preferred one first: BACKEND(name, open, scratch bytes). */
BACKEND("cpu", backend_cpu_open, backend_cpu_scratch_bytes)
