"""The kinds of tasks that come with the package, one module each."""
