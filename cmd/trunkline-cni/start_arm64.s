#include "go_asm.h"
#include "textflag.h"

// start is where the program begins when it is linked with -E main.start: see early.go.
// The kernel has left argc, argv and the environment on the stack. Compiled Go wants its
// g in a register; ours has a stack guard of zero, so no function asks the runtime for a
// larger stack. The runtime sets it anew.
TEXT ·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD	RSP, R0
	MOVD	R0, ·process+earlyStart_stack(SB)
	MOVD	$·process+earlyStart_g(SB), g
	BL	·early(SB)
	MOVD	·process+earlyStart_stack(SB), R0
	MOVD	R0, RSP
	JMP	_rt0_arm64_linux(SB)
