package mutants

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// finalStatements are the statements at the end of a body without which it would not end
// in a return, by the language's rule of terminating statements.
func finalStatements(body *ast.BlockStmt) map[ast.Stmt]bool {
	final := map[ast.Stmt]bool{}
	var mark func(s ast.Stmt)
	last := func(list []ast.Stmt) {
		if len(list) > 0 {
			mark(list[len(list)-1])
		}
	}
	clauses := func(body *ast.BlockStmt) {
		for _, clause := range body.List {
			switch clause := clause.(type) {
			case *ast.CaseClause:
				last(clause.Body)
			case *ast.CommClause:
				last(clause.Body)
			}
		}
	}
	mark = func(s ast.Stmt) {
		final[s] = true
		switch s := s.(type) {
		case *ast.BlockStmt:
			last(s.List)
		case *ast.LabeledStmt:
			mark(s.Stmt)
		case *ast.IfStmt:
			if s.Else != nil {
				last(s.Body.List)
				mark(s.Else)
			}
		case *ast.SwitchStmt:
			clauses(s.Body)
		case *ast.TypeSwitchStmt:
			clauses(s.Body)
		case *ast.SelectStmt:
			clauses(s.Body)
		}
	}
	last(body.List)
	return final
}

// droppable reports whether a mutant leaves a statement out. Another mutant does the same
// for the only statement of an if, a loop or a case.
func (f *finder) droppable(s ast.Stmt, parent ast.Node) bool {
	if !slices.Contains(listOf(parent), s) || f.alone[s] || f.final[s] && !isCallOrAssignment(s) {
		return false
	}
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return !ok || !f.harmless(call, false)
	case *ast.DeferStmt:
		return !f.harmless(s.Call, true)
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE && !onlyBlank(s.Lhs)
	case *ast.BranchStmt:
		return s.Tok == token.BREAK || s.Tok == token.CONTINUE
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.ReturnStmt, *ast.RangeStmt, *ast.ForStmt:
		return true
	}
	return false
}

// listOf is the list of statements of a block or clause.
func listOf(n ast.Node) []ast.Stmt {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return n.List
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}

// isCallOrAssignment reports whether a statement cannot end a function.
func isCallOrAssignment(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.ExprStmt, *ast.AssignStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.RangeStmt:
		return true
	}
	return false
}

// aloneStatements are the only statements of branches, loops and cases below a node.
func aloneStatements(body ast.Node) map[ast.Stmt]bool {
	alone := map[ast.Stmt]bool{}
	note := func(list []ast.Stmt) {
		if len(list) == 1 {
			alone[list[0]] = true
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			note(n.Body.List)
			if block, ok := n.Else.(*ast.BlockStmt); ok {
				note(block.List)
			}
		case *ast.ForStmt:
			note(n.Body.List)
		case *ast.RangeStmt:
			note(n.Body.List)
		case *ast.SwitchStmt:
			for _, clause := range n.Body.List {
				if clause := clause.(*ast.CaseClause); clause.List != nil {
					note(clause.Body)
				}
			}
		}
		return true
	})
	return alone
}

func onlyBlank(list []ast.Expr) bool {
	return !slices.ContainsFunc(list, func(e ast.Expr) bool {
		name, ok := e.(*ast.Ident)
		return !ok || name.Name != "_"
	})
}

// harmless reports whether a call is left as it is: those of locks, which the race detector
// checks, logs, panics, and deferred ones that only release what a process has.
func (f *finder) harmless(call *ast.CallExpr, deferred bool) bool {
	if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "panic" {
		return true
	}
	o := f.called(call)
	if o == nil {
		return false
	}
	switch packageOf(o) {
	case "log/slog":
		return true
	case "sync":
		return slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock"}, o.Name())
	}
	return deferred && (slices.Contains([]string{"Close", "Stop"}, o.Name()) || isCancel(o.Type()))
}

func isCancel(t types.Type) bool { return t.String() == "context.CancelFunc" }

// results adds other results of a return: no error, the opposite of a boolean.
func (f *finder) results(s *ast.ReturnStmt, stack []ast.Node) {
	signature := f.signature(stack)
	if signature == nil || signature.Results().Len() != len(s.Results) {
		return
	}
	for i, value := range s.Results {
		switch t := signature.Results().At(i).Type(); {
		case f.info.Types[value].IsNil():
		case t.String() == "error":
			f.add(NoError, value, wrap("mutantNoError(%d, ", ")"))
		default:
			f.negated(value)
		}
	}
}

// signature is that of the innermost function in a stack of nodes.
func (f *finder) signature(stack []ast.Node) *types.Signature {
	for _, n := range slices.Backward(stack) {
		switch n := n.(type) {
		case *ast.FuncLit:
			signature, _ := f.info.Types[n].Type.(*types.Signature)
			return signature
		case *ast.FuncDecl:
			return f.info.Defs[n.Name].Type().(*types.Signature)
		}
	}
	return nil
}

// cases adds values of a switch that never match, and conditions of one without a value.
func (f *finder) cases(s *ast.SwitchStmt) {
	for _, clause := range s.Body.List {
		for _, value := range clause.(*ast.CaseClause).List {
			if s.Tag == nil {
				f.condition(value)
				continue
			}
			basic, ok := f.info.Types[value].Type.Underlying().(*types.Basic)
			if !ok {
				continue
			}
			text, known := f.typeText(f.info.Types[value].Type)
			switch {
			case !known:
			case basic.Info()&types.IsString != 0:
				f.add(Case, value, wrap("mutantOtherString["+text+"](%d, ", ")"))
			case basic.Info()&types.IsInteger != 0:
				f.add(Case, value, wrap("mutantOtherInteger["+text+"](%d, ", ")"))
			}
		}
	}
}
