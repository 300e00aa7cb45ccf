"""Hours of traffic in minutes, with a fault every few seconds: checks the balance and the memory."""
