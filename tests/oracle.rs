use icechunk as _;
