"""Parts of the study on a real pair."""
