"""What finds the answer in a text, and says whether it is right."""
