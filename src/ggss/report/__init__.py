"""What people read: tables, pictures, pages."""
