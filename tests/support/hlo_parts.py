"""A compiled program in parts, written by hand: replace BODY by instructions."""

PARTS = """HloModule parts, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%multiplied (p: f32[256,256]) -> f32[256,256] {
  %p = f32[256,256]{1,0} parameter(0)
  ROOT %product = f32[256,256]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%negated (n: f32[256,256]) -> f32[256,256] {
  %n = f32[256,256]{1,0} parameter(0)
  ROOT %minus = f32[256,256]{1,0} negate(%n)
}

%scattered (s: f32[256,256]) -> f32[64,256] {
  %s = f32[256,256]{1,0} parameter(0)
  ROOT %rs = f32[64,256]{1,0} reduce-scatter(%s), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

%called_computation (c: f32[256,256], t: token[]) -> f32[1024,256] {
  %c = f32[256,256]{1,0} parameter(0)
  %t = token[] parameter(1)
  ROOT %ag = f32[1024,256]{1,0} all-gather(%c), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}
}, execution_thread="sparsecore"

%added (table: f32[4096,256], rows: s32[256], new: f32[256,256]) -> f32[4096,256] {
  %table = f32[4096,256]{1,0} parameter(0)
  %rows = s32[256]{0:S(1)} parameter(1)
  %new = f32[256,256]{1,0} parameter(2)
  ROOT %scatter = f32[4096,256]{1,0} scatter(%table, %rows, %new), update_window_dims={1}, to_apply=%add
}

%view (v: f32[256,256]) -> f32[256,256] {
  %v = f32[256,256]{1,0} parameter(0)
  ROOT %seen = f32[256,256]{1,0} bitcast(%v)
}

%squared (q: f32[256,256]) -> f32[256,256] {
  %q = f32[256,256]{1,0} parameter(0)
  %left = f32[256,256]{1,0} fusion(%q), kind=kLoop, calls=%view
  ROOT %square = f32[256,256]{1,0} dot(%left, %left), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%random (r: u32[4]) -> (u32[4], u32[256,256]) {
  %r = u32[4]{0:S(1)} parameter(0)
  ROOT %bits = (u32[4]{0:S(1)}, u32[256,256]{1,0}) rng-bit-generator(%r), algorithm=rng_default
}

ENTRY %main (x: f32[256,256], which: s32[], all: f32[4096,256], at: s32[256], key: u32[4]) -> f32[] {
  %x = f32[256,256]{1,0} parameter(0)
  %which = s32[]{:S(6)} parameter(1)
  %all = f32[4096,256]{1,0} parameter(2)
  %at = s32[256]{0:S(1)} parameter(3)
  %key = u32[4]{0:S(1)} parameter(4)
  BODY
}
"""
X, QUARTER, FOUR = "f32[256,256]{1,0}", "f32[64,256]{1,0}", "f32[1024,256]{1,0}"
EACH = "replica_groups={{0,1,2,3}}, dimensions={0}"
