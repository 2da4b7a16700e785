package mutants

// minimums lists what the report has reached, by target.
func minimums() map[string]minimum {
	return map[string]minimum{
		"internal/core/cloud":            {86.5, 13},
		"internal/core/cniconf":          {100.0, 0},
		"internal/core/config":           {99.1, 2},
		"internal/core/drift":            {100.0, 0},
		"internal/core/endpoint":         {93.6, 7},
		"internal/core/handover":         {70.2, 28},
		"internal/core/hostnet":          {71.1, 173},
		"internal/core/leak":             {100.0, 0},
		"internal/core/podcidr":          {100.0, 0},
		"internal/core/ruleset":          {97.7, 5},
		"internal/core/stale":            {100.0, 0},
		"internal/core/vpc":              {96.2, 1},
		"internal/edge/cnirpc":           {94.5, 0},
		"internal/edge/cnirpc/cniserver": {90.8, 0},
		"internal/edge/journal":          {94.9, 0},
		"sim/iam":                        {98.7, 3},
		"sim/iam/sigv4":                  {99.0, 0},
	}
}
