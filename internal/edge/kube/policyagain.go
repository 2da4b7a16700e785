package kube

// Again has the next Take return all that is known, for a caller that starts again.
func (p *PolicyObjects) Again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known.again()
}

func (s *policyState) again() {
	for ref, row := range s.policies {
		put(&s.pending.Policies, ref, row.object)
	}
	for name, set := range s.namespaces {
		put(&s.pending.Namespaces, name, &set)
	}
	for ref, row := range s.peers.pods {
		if row.given != nil {
			put(&s.pending.Pods, ref, row.given)
			s.account(ref, row.given)
		}
	}
}
