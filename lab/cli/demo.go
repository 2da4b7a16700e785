package cli

type demoCmd struct {
	upCmd
}
