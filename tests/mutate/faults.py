"""The faults that mutate.py plants. Each must be noticed by every test it names."""
import faults_engine
import faults_server

FAULTS = faults_engine.FAULTS + faults_server.FAULTS
