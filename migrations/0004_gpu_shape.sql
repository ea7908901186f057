-- What an administrator decided that a card is divided into, with the boot in which it came into force.
ALTER TABLE gpus ADD COLUMN shape TEXT;
-- MIG instances that gvm made for machines: written before they are made, so that none is forgotten.
ALTER TABLE gpus ADD COLUMN own_instances TEXT NOT NULL DEFAULT '[]';
