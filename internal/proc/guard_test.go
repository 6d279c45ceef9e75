package proc

func playInit(argv []string) int { return 0 }

func victim() int { return 0 }
