-- The vGPU types that a card has, by name: its driver lists only those that it has room for at the moment.
ALTER TABLE gpus ADD COLUMN vgpu_types TEXT NOT NULL DEFAULT '[]';
