"""Description of traces in tables, plots and an HTML page, from one pass over them in bounded memory."""
