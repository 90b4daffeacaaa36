"""Where problems come from: files and the Hugging Face hub, as rows with named columns."""
