"""What all packages stand on: errors, files, the user's folders, strict JSON and YAML, terminal, progress, pages."""
