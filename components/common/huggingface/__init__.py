"""Models in Hugging Face's Llama format: their names, config.json and weight files, on any storage. No torch."""
