package mutants

// minimums lists what the report has reached, by target.
func minimums() map[string]minimum {
	return map[string]minimum{
		"internal/core/cloud":            {86.5, 13},
		"internal/core/cniconf":          {91.2, 9},
		"internal/core/config":           {83.1, 40},
		"internal/core/drift":            {100.0, 0},
		"internal/core/endpoint":         {61.2, 43},
		"internal/core/handover":         {70.2, 28},
		"internal/core/hostnet":          {71.1, 173},
		"internal/core/leak":             {86.1, 13},
		"internal/core/podcidr":          {84.1, 13},
		"internal/core/ruleset":          {95.5, 10},
		"internal/core/vpc":              {96.2, 1},
		"internal/edge/cnirpc":           {60.5, 94},
		"internal/edge/cnirpc/cniserver": {71.5, 49},
		"sim/iam":                        {75.6, 121},
		"sim/iam/sigv4":                  {80.0, 21},
	}
}
