"""The faults that mutate.py plants. Each must be noticed by every test it names."""
import faults_bench
import faults_blocks
import faults_cluster
import faults_cuda
import faults_disks
import faults_draft
import faults_engine
import faults_families
import faults_gpt_oss
import faults_guide
import faults_layout
import faults_native
import faults_overlap
import faults_panels
import faults_pull
import faults_server
import faults_terminal
import faults_users
import faults_validate

FAULTS = (faults_bench.FAULTS + faults_blocks.FAULTS + faults_cluster.FAULTS +
          faults_cuda.FAULTS + faults_disks.FAULTS + faults_draft.FAULTS + faults_engine.FAULTS +
          faults_families.FAULTS + faults_gpt_oss.FAULTS + faults_guide.FAULTS +
          faults_layout.FAULTS + faults_native.FAULTS + faults_overlap.FAULTS +
          faults_panels.FAULTS + faults_pull.FAULTS + faults_server.FAULTS +
          faults_terminal.FAULTS + faults_users.FAULTS + faults_validate.FAULTS)
