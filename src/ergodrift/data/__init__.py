"""Where samples come from: chains, recorded series, independent draws, and expectations over them."""
