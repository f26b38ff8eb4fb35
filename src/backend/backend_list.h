/* Every backend, the preferred one first: BACKEND(name, open function). */
BACKEND("cpu", backend_cpu_open)
