"""What the terminal shows, and files hold, of answers."""
