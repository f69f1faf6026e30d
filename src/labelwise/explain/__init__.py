"""Why a model says what it says: where it looked, and which experts it relied on."""
