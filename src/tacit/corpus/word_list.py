"""A small public word list: names for things that must differ and must not be secret.

Short, common, concrete nouns, so that a word-level vocabulary knows them and a subword tokenizer seldom
splits them. Secrets are never drawn from here: they come from the list that the caller gives.
"""

from __future__ import annotations

PUBLIC_WORDS: tuple[str, ...] = (
    "apple", "arrow", "autumn", "barn", "beach", "bell", "bird", "boat", "bottle", "bread", "bridge",
    "butter", "cabin", "camera", "candle", "castle", "chain", "chair", "cheese", "cherry", "circle", "cloud",
    "coffee", "copper", "corn", "cotton", "cover", "desert", "door", "dream", "drum", "eagle", "engine",
    "farm", "feather", "field", "finger", "fire", "fish", "flag", "floor", "flower", "forest", "fruit",
    "garden", "gate", "glass", "gold", "grass", "hammer", "harbor", "hill", "honey", "horse", "island",
    "jacket", "kitchen", "ladder", "lake", "lamp", "leaf", "lemon", "letter", "light", "lion", "market",
    "meadow", "metal", "milk", "mirror", "moon", "morning", "mountain", "mouse", "music", "needle", "ocean",
    "orange", "paper", "pearl", "pencil", "piano", "pillow", "planet", "pocket", "rabbit", "rain", "ribbon",
    "river", "road", "rocket", "rose", "salt", "sand", "shadow", "sheep", "silver", "snow", "spring",
    "station", "stone", "storm", "sugar", "summer", "table", "temple", "tiger", "tower", "train", "tree",
    "valley", "village", "violin", "wagon", "water", "wheel", "window", "winter", "wolf", "wood",
)  # fmt: skip
