"""Self-contained HTML pages with interactive charts: their shell, their two themes, and the charts as pictures."""
