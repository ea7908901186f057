# shellcheck shell=bash
# gvm on the nested host, as its units; what its doctor says is kept in target/test-logs/lab

scenario() {
  local form
  lab_installed
  check "both services run" lab_says $'active\nactive' systemctl is-active gvm gvm-gateway
  mkdir -p "${run:?}/keep"
  for form in table json; do in_lab "$LAB_LONG" "gvm -o $form doctor" >"$run/keep/doctor.$form" 2>&1 || true; done
  check "the doctor has looked" grep -q libvirt "$run/keep/doctor.table"
  check "and finds no fault" no_fault "$run/keep/doctor.table"
  check "it has the guest's image" lab_matches '^lab ' "$LAB_SHORT" gvm image list
}

no_fault() { ! grep -E '^(fault|fail)' "$1"; }
