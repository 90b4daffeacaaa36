"""Worker processes: how they are started, what they keep, and how work is handed out to them."""
