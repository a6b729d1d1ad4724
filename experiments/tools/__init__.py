"""Programs that make pages, drawings, tables and mock data, and that check them."""
