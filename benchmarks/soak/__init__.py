"""Hours of traffic in minutes, with a fault every few seconds: does the balance stay exact, and the memory flat?"""
