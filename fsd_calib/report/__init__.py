"""What a profile says, made into tables and sentences. Every number shown is one that the profile holds."""
