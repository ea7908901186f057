-- What became of a card that cannot be seen of it: signs of the kernel's log, whether a machine used it since it was
-- sanitised, how that was done last.
ALTER TABLE gpus ADD COLUMN health TEXT NOT NULL DEFAULT '{}';
