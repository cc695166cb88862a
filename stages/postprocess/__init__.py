"""Raw outputs into objects: one file per output layout, NMS, and the stage around them."""
