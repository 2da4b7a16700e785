package link

// Index returns the index of the link with a name; 0 if there is none.
func (h *Host) Index(name string) (int, error) {
	a, err := h.sockets.find(name)
	if err != nil || a == nil {
		return 0, err
	}
	return a.Index, nil
}
